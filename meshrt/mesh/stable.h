/* Python's stable ABI, as its headers have it; or what the compiled core needs of it, for machines that have Python
   without its headers.

   https://docs.python.org/3/c-api/stable.html: these layouts and functions are the same in every Python 3 since 3.11, the
   first whose stable ABI has buffers. */

#define Py_LIMITED_API 0x030B0000
#if __has_include(<Python.h>) && !defined(WITHOUT_PYTHON_H)
#include <Python.h>
#else
#include <stddef.h>
#include <sys/types.h>

typedef ssize_t Py_ssize_t;

typedef struct {
    Py_ssize_t references;
    void *type;
} PyObject;

typedef struct {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
} Py_buffer;

typedef PyObject *(*PyCFunction)(PyObject *, PyObject *);

typedef struct {
    const char *name;
    PyCFunction function;
    int flags;
    const char *doc;
} PyMethodDef;

struct PyModuleDef {
    struct {
        PyObject base;
        PyObject *(*init)(void);
        Py_ssize_t index;
        PyObject *copy;
    } base;
    const char *name, *doc;
    Py_ssize_t size;
    PyMethodDef *methods;
    void *slots, *traverse, *clear, *free;
};

#define PyModuleDef_HEAD_INIT {{1, NULL}, NULL, 0, NULL}
#define PyMODINIT_FUNC __attribute__((visibility("default"))) PyObject *
#define METH_FASTCALL 0x0080
#define PyBUF_SIMPLE 0
#define PyBUF_WRITABLE 1
#define PyBUF_STRIDES 0x18

extern PyObject *PyExc_TypeError, *PyExc_ValueError;
void PyErr_SetString(PyObject *, const char *);
PyObject *PyErr_Occurred(void);
double PyFloat_AsDouble(PyObject *);
long long PyLong_AsLongLong(PyObject *);
int PyObject_IsTrue(PyObject *);
int PyObject_GetBuffer(PyObject *, Py_buffer *, int);
void PyBuffer_Release(Py_buffer *);
PyObject *Py_BuildValue(const char *, ...);
typedef struct PyThreadState PyThreadState;
PyThreadState *PyEval_SaveThread(void);
void PyEval_RestoreThread(PyThreadState *);
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
void Py_DecRef(PyObject *);
int PyErr_CheckSignals(void);
PyObject *PyErr_NoMemory(void);
PyObject *PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyObject *PySequence_GetItem(PyObject *, Py_ssize_t);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
int PyBytes_AsStringAndSize(PyObject *, char **, Py_ssize_t *);
int PyModule_AddIntConstant(PyObject *, const char *, long);
PyObject *PyModule_Create2(struct PyModuleDef *, int);
#define PyModule_Create(definition) PyModule_Create2(definition, 3) /* the version of the stable ABI */
#endif

"""`nki.typing`: annotations of kernels, which say nothing here, and numbers that tiles hold."""

from typing import Any


class _Annotation:
    def __getitem__(self, _: Any) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


class _Scalar(_Annotation):
    """`scalar(tile)`, of a tile with one number: that number, such as for the bounds of a loop."""

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0].as_index() if args and hasattr(args[0], "as_index") else self


tensor = mutable_tensor = mutable = _Annotation()
scalar = _Scalar()

"""`nki.typing`: annotations of kernels, which say nothing here."""

from typing import Any


class _Annotation:
    def __getitem__(self, _: Any) -> Any:
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


tensor = mutable_tensor = scalar = mutable = _Annotation()

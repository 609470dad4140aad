"""OpenCV, imported on first use: data without images needs none."""

from typing import TYPE_CHECKING, Any

from ..errors import MissingDependency

if TYPE_CHECKING:
    import cv2 as cv2
else:

    class _OpenCV:
        """The module cv2; an attribute that was looked up once is found as fast as a module's."""

        def __getattr__(self, name: str) -> Any:
            try:
                import cv2 as module
            except ImportError as error:
                raise MissingDependency(
                    f"images need OpenCV, which cannot be imported ({error}): pip install opencv-python-headless"
                ) from error
            value = getattr(module, name)
            setattr(self, name, value)
            return value

    cv2 = _OpenCV()

"""Where the tests of the dashboard keep the pictures of its pages, light and dark."""

from pathlib import Path

PICTURES = Path(__file__).parents[1] / "build" / "dashboard-pictures"  # ignored by git

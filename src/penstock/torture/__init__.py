"""`penstock torture`: kill writers and damage files on the user's own disk. Tests use it too."""

from penstock.torture.kills import Finding
from penstock.torture.run import Report, torture

__all__ = ["Finding", "Report", "torture"]

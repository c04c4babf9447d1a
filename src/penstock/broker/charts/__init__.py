"""Chart history: what happened in the queues over the last week, in steps."""

from penstock.broker.charts.charts import Chart, Charts
from penstock.broker.charts.rows import SERIES

__all__ = ["SERIES", "Chart", "Charts"]

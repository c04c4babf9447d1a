"""The nightly job as a DAG of Airflow 3. Copy it to Airflow's folder of DAGs.

Airflow is not needed for anything else here. The task fails if the tables do not agree, since the
command exits with 1 then.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

PIPELINE = "/srv/penstock"  # the directory that has examples/
LAKE = "/srv/lake"

with DAG(
    dag_id="reconcile_orders",
    schedule="0 2 * * *",  # two hours after midnight the streams have certainly passed it
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
) as dag:
    BashOperator(
        task_id="reconcile",
        cwd=PIPELINE,
        bash_command=(
            f"python -m examples.pipeline.reconcile {LAKE} "
            "--until {{ data_interval_end.start_of('day') | ts }}"
        ),
        retries=2,
        retry_delay=timedelta(minutes=10),
    )

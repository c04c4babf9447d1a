"""A directory that processes share: its clients compared with those of a broker over loopback HTTP,
its holder with a queue that is opened alone."""

import sys

from command import HERE, Benchmark, run
from measure import Contender, Round, Row, Target

import penstock

OF_HTTP_AT_MOST = 3.0
OF_EMBEDDED_AT_LEAST = 0.5
TAKEOVER_MS_AT_MOST = 1000.0


def rows(*, quick: bool) -> list[Row]:
    few = 10 if quick else 1
    return [
        _of_a_client("publish", 2000 // few),
        _of_a_client("lease and ack", 1000 // few),
        _of_the_holder("publish", 50_000 // few),
        _of_the_holder("lease and ack", 20_000 // few),
        _takeover(1 if quick else 5),
    ]


def _of_a_client(does: str, count: int) -> Row:
    arguments: dict[str, int | str | bool] = {"count": count, "does": does}
    return Row(
        name=f"client-{does.replace(' ', '-')}",
        title=f"{does}, by a second process, one call after the other",
        unit="calls/s",
        contenders=[
            Contender(
                name="HTTP by hand",
                workload="http_by_hand",
                arguments=arguments,
                does="http.client over loopback, no dedup ids, no retries",
            ),
            Contender(
                name="HTTP, penstock.client",
                workload="http_client",
                arguments=arguments,
                does="penstock.connect over loopback",
            ),
            Contender(
                name="shared",
                workload="client",
                arguments=arguments,
                does="penstock.open(path, shared=True); another process holds it",
            ),
        ],
        targets=[
            Target(
                says=f"CPU of shared, of HTTP by hand, at most {OF_HTTP_AT_MOST:g}",
                judge=_of_http,
                at_most=OF_HTTP_AT_MOST,
            )
        ],
    )


def _of_the_holder(does: str, count: int) -> Row:
    arguments: dict[str, int | str | bool] = {"count": count, "does": does}
    return Row(
        name=f"holder-{does.replace(' ', '-')}",
        title=f"{does}, by the holder",
        unit="calls/s",
        contenders=[
            Contender(
                name="embedded",
                workload="embedded",
                arguments=arguments,
                does="penstock.open(path)",
            ),
            Contender(
                name="holder",
                workload="holder",
                arguments=arguments,
                does="penstock.open(path, shared=True), without clients",
            ),
        ],
        targets=[
            Target(
                says=f"holder, of embedded by CPU, at least {OF_EMBEDDED_AT_LEAST}",
                judge=_of_embedded,
                at_least=OF_EMBEDDED_AT_LEAST,
            )
        ],
    )


def _takeover(count: int) -> Row:
    return Row(
        name="takeover",
        title="from the kill of the holder to the answer of the next one",
        unit="ms",
        contenders=[
            Contender(
                name="shared",
                workload="takeover",
                arguments={"count": count},
                does="a client publishes at once after the kill, and takes over itself",
            )
        ],
        targets=[
            Target(
                says=f"milliseconds, at most {TAKEOVER_MS_AT_MOST:g}",
                judge=lambda one: one["shared"]["milliseconds"],
                at_most=TAKEOVER_MS_AT_MOST,
            )
        ],
    )


def _of_http(one: Round) -> float:
    return one["shared"]["cpu_us"] / one["HTTP by hand"]["cpu_us"]


def _of_embedded(one: Round) -> float:
    return one["embedded"]["cpu_us"] / one["holder"]["cpu_us"]


def versions() -> dict[str, str]:
    return {"penstock": penstock.__version__}


BENCHMARK = Benchmark(
    name="shared",
    title="A directory that processes share",
    workloads=HERE / "shared_workloads.py",
    rows=rows,
    versions=versions,
    settle_mib=0,
    rounds=3,
)

if __name__ == "__main__":
    sys.exit(run(BENCHMARK, __doc__ or ""))

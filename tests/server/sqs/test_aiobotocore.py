"""The asyncio client of SQS."""

import asyncio
from typing import Any

from aiobotocore.session import get_session

from tests.server.running import RunningServer


def test_an_asyncio_client_sends_waits_and_deletes(server: RunningServer, queue: str) -> None:
    async def work() -> list[str]:
        client: Any
        async with get_session().create_client(
            "sqs",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        ) as client:
            made = await client.create_queue(QueueName=queue)
            url = made["QueueUrl"]
            waiting = asyncio.gather(
                *(client.receive_message(QueueUrl=url, WaitTimeSeconds=20) for _ in range(5))
            )
            for number in range(5):
                await client.send_message(QueueUrl=url, MessageBody=str(number))
            got = [one for answer in await waiting for one in answer["Messages"]]
            entries = [
                {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(got)
            ]
            gone = await client.delete_message_batch(QueueUrl=url, Entries=entries)
            assert len(gone["Successful"]) == 5
            return sorted(one["Body"] for one in got)

    assert asyncio.run(work()) == ["0", "1", "2", "3", "4"]

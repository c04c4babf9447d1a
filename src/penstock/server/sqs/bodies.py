"""The bodies of requests, with the names and types of SQS's service model."""

from msgspec import Struct

from penstock.server.sqs.message_attributes import Attribute


class Anything(Struct):
    """Of calls that are refused whatever they say."""


class CreateQueue(Struct):
    QueueName: str
    Attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = None


class OfQueue(Struct):
    """Of calls that name only a queue."""

    QueueUrl: str


class GetQueueUrl(Struct):
    QueueName: str
    QueueOwnerAWSAccountId: str | None = None


class ListQueues(Struct):
    QueueNamePrefix: str | None = None
    NextToken: str | None = None
    MaxResults: int | None = None


class ListDeadLetterSourceQueues(Struct):
    QueueUrl: str
    NextToken: str | None = None
    MaxResults: int | None = None


class GetQueueAttributes(Struct):
    QueueUrl: str
    AttributeNames: list[str] | None = None


class SetQueueAttributes(Struct):
    QueueUrl: str
    Attributes: dict[str, str]


class TagQueue(Struct):
    QueueUrl: str
    Tags: dict[str, str]


class UntagQueue(Struct):
    QueueUrl: str
    TagKeys: list[str]


class NewEntry(Struct):
    """A message to be sent. `Id` is that of an entry of a batch."""

    MessageBody: str
    Id: str = ""
    DelaySeconds: int | None = None
    MessageAttributes: dict[str, Attribute] | None = None
    MessageSystemAttributes: dict[str, Attribute] | None = None
    MessageDeduplicationId: str | None = None
    MessageGroupId: str | None = None


class SendMessage(NewEntry, kw_only=True):
    QueueUrl: str


class SendMessageBatch(Struct):
    QueueUrl: str
    Entries: list[NewEntry]


class ReceiveMessage(Struct):
    QueueUrl: str
    AttributeNames: list[str] | None = None
    MessageSystemAttributeNames: list[str] | None = None
    MessageAttributeNames: list[str] | None = None
    MaxNumberOfMessages: int | None = None
    VisibilityTimeout: int | None = None
    WaitTimeSeconds: int | None = None
    ReceiveRequestAttemptId: str | None = None


class Handle(Struct):
    """A delivery that is settled. `Id` is that of an entry of a batch."""

    ReceiptHandle: str
    Id: str = ""


class DeleteMessage(Handle, kw_only=True):
    QueueUrl: str


class DeleteMessageBatch(Struct):
    QueueUrl: str
    Entries: list[Handle]


class Visibility(Handle, kw_only=True):
    VisibilityTimeout: int


class ChangeMessageVisibility(Visibility, kw_only=True):
    QueueUrl: str


class ChangeMessageVisibilityBatch(Struct):
    QueueUrl: str
    Entries: list[Visibility]


class StartMessageMoveTask(Struct):
    SourceArn: str
    DestinationArn: str | None = None
    MaxNumberOfMessagesPerSecond: int | None = None


class ListMessageMoveTasks(Struct):
    SourceArn: str
    MaxResults: int | None = None


class CancelMessageMoveTask(Struct):
    TaskHandle: str

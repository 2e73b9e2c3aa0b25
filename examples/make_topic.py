"""Make the real topics of the examples: halfbridge makes its own topics, and not yours."""

import os

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

servers = os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
admin = AdminClient({"bootstrap.servers": servers})
for topic in ("orders", "bills"):
    try:
        admin.create_topics([NewTopic(topic, 4)])[topic].result()
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise

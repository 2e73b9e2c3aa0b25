"""A FastAPI service that takes orders: `uvicorn --app-dir examples web_shop:app`.

One producer a process, made when the process serves (gunicorn and uvicorn fork before that). The
path is a plain `def`, so that FastAPI runs it in a thread: `send` and the database block.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from halfbridge import BridgeError, Message, OutcomeUnknownError, TransactionProducer
from halfbridge.sql import Fence


class Base(DeclarativeBase):
    """The shop's tables."""


class Placed(Base):
    """An order."""

    __tablename__ = "web_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


engine = create_engine(os.environ.get("SHOP_URL", "sqlite:///shop.db"))
session_factory = sessionmaker(engine)
fence = Fence(engine, producer_group="order-service")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have a producer while the process serves."""
    Base.metadata.create_all(engine)
    fence.create()
    with TransactionProducer(
        bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        producer_group="order-service",
        topics=["orders"],
        checker=fence.check,
    ) as app.state.producer:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
def place(item: str, request: Request) -> dict[str, str]:
    """Place an order: both the row and the message, or neither."""
    producer = request.app.state.producer
    try:
        with fence.transaction(producer, session_factory=session_factory) as (tx, session):
            tx.send(Message("orders", key=item.encode(), value=item.encode()))
            session.add(Placed(item=item))
    except OutcomeUnknownError as error:  # the database has committed; a check commits the message
        return {"placed": item, "transaction": error.transaction_id}
    except BridgeError as error:  # Kafka takes nothing now; nothing was placed
        raise HTTPException(503, "try again") from error
    return {"placed": item, "transaction": tx.id}

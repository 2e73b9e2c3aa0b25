"""A FastAPI service that takes orders: `uvicorn --app-dir examples web_shop:app`.

One producer a process, made when the process serves (gunicorn and uvicorn fork before that). The
path is a plain `def`, so that FastAPI runs it in a thread: `send` and the database block.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

from halfbridge import BridgeError, Message, OutcomeUnknownError, TransactionProducer
from halfbridge.sql import Fence


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """An order."""

    __tablename__ = "web_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(unique=True)


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
def place(item: str, request: Request) -> dict[str, int | str]:
    """Place an order: both the row and the message, or neither."""
    producer = request.app.state.producer
    try:
        with fence.transaction(producer, session_factory=session_factory) as (tx, session):
            session.add(order := Order(item=item))
            session.flush()  # the database makes the number
            number = order.id
            tx.send(Message("orders", key=b"%d" % number, value=item.encode()))
    except IntegrityError as error:
        raise HTTPException(409, "ordered before") from error
    return {"order": number, "transaction": tx.id}


@app.exception_handler(BridgeError)
def refuse(_request: Request, _error: BridgeError) -> JSONResponse:
    """Kafka takes nothing now, and nothing was placed: the client may repeat the request."""
    return JSONResponse({"detail": "try again"}, status_code=503)


@app.exception_handler(OutcomeUnknownError)
def accept(_request: Request, _error: OutcomeUnknownError) -> JSONResponse:
    """The order may be placed, and a check finds out: the client must not repeat the request."""
    return JSONResponse({"detail": "look for your order later"}, status_code=202)

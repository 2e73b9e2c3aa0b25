"""A FastAPI service on asyncio that takes orders: `uvicorn --app-dir examples async_shop:app`.

One producer a process, made when the process serves. A request's dependency is one block: the
order and its message are committed, or neither, before the response is sent.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from halfbridge import (
    AsyncTransaction,
    AsyncTransactionProducer,
    BridgeError,
    Message,
    OutcomeUnknownError,
)
from halfbridge.sql import AsyncFence


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """An order."""

    __tablename__ = "async_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(unique=True)


engine = create_async_engine(os.environ.get("SHOP_URL", "sqlite+aiosqlite:///shop.db"))
sessions = async_sessionmaker(engine, expire_on_commit=False)
fence = AsyncFence(engine, producer_group="order-service")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Have a producer while the process serves; it answers checks from its start on."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await fence.create()
    async with AsyncTransactionProducer(
        bootstrap_servers=os.environ.get("HALFBRIDGE_BOOTSTRAP_SERVERS", "127.0.0.1:9092"),
        producer_group="order-service",
        topics=["orders"],
        checker=fence.check,
    ) as app.state.producer:
        yield
    await engine.dispose()


app = FastAPI(lifespan=lifespan)


async def block(request: Request) -> AsyncIterator[tuple[AsyncTransaction, AsyncSession]]:
    """Commit both transactions if the path operation returns; roll both back if it raises."""
    producer = request.app.state.producer
    async with fence.async_transaction(producer, session_factory=sessions) as both:
        yield both


# scope="function": the block ends before the response is sent. By default FastAPI sends it first.
Block = Annotated[tuple[AsyncTransaction, AsyncSession], Depends(block, scope="function")]


@app.post("/orders", status_code=201)
async def place(item: str, both: Block) -> dict[str, int | str]:
    """Place an order: both the row and the message, or neither."""
    tx, session = both
    order = Order(item=item)
    session.add(order)
    try:
        await session.flush()
    except IntegrityError as error:  # rolls the block back, as any exception does
        raise HTTPException(409, "ordered before") from error
    await tx.send(Message("orders", key=b"%d" % order.id, value=item.encode()))
    return {"order": order.id, "transaction": tx.id}


@app.get("/health")
async def health(request: Request) -> dict[str, int]:
    """Answer 200 if the database answers: orders need it, and so do checks."""
    try:
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
    except SQLAlchemyError as error:
        raise HTTPException(503, "the database does not answer") from error
    return {"failed_decisions": request.app.state.producer.failed_decisions}


@app.exception_handler(BridgeError)
async def refuse(_request: Request, _error: BridgeError) -> JSONResponse:
    """Kafka takes nothing now, and nothing was placed: the client may repeat the request."""
    return JSONResponse({"detail": "try again"}, status_code=503)


@app.exception_handler(OutcomeUnknownError)
async def accept(_request: Request, _error: OutcomeUnknownError) -> JSONResponse:
    """The order may be placed, and a check finds out: the client must not repeat the request."""
    return JSONResponse({"detail": "look for your order later"}, status_code=202)

"""The project for uvicorn, whose workers import it after they have started."""

from django.core.asgi import get_asgi_application

from halfbridge.django import producer

app = get_asgi_application()
producer()

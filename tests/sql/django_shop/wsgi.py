"""The project for gunicorn. With --preload the parent makes a producer before it forks."""

from django.core.wsgi import get_wsgi_application

from halfbridge.django import producer

application = get_wsgi_application()
producer()

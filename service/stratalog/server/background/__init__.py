"""The work that a server does by itself: tasks, their threads, uploads, retention, cleaning."""

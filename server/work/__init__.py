"""Work kept off the event loop: on a thread, on one that can be interrupted, in a process."""

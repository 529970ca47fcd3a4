"""Sockets of one process: connections that authenticate, frames in and out, one network thread. The content of frames is opaque here."""

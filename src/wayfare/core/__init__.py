"""The protocol: pure, no I/O. Hosts feed it events and perform the effects that it returns."""

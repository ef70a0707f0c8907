"""How real engines are started: what each field of `engines[].launch` is called by each engine (one file an engine),
the command line made of it, what is looked at before a start, and the guard that no engine outlives."""

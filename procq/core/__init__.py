"""What happens next: a calculator without clock, I/O, threads or randomness of its own.

Every call takes `now`, seconds that are only compared and added to, and the caller carries out
what follows from it.  Same calls, same `now`, same answers (DESIGN, "the core is a calculator").
"""

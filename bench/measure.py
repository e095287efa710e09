# One measurement of one peer, in a process of its own: `python -m bench.measure noop futures`.
#
# Only the block below imports anything: workers that are spawned read this file, too.
if __name__ == "__main__":
    import sys

    from bench.workloads import main

    main(*sys.argv[1:])

# A plain script that uses a queue directly; it needs no `if __name__ == "__main__"` unless it is imported, too.
#
#   python examples/use_queue.py
import procq


@procq.task(max_attempts=3, timeout="30s")
def primes_below(limit: int) -> int:
    sieve = bytearray([1]) * limit
    sieve[:2] = b"\0\0"
    for number in range(2, int(limit**0.5) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit, number)))
    return sum(sieve)


with procq.Queue(workers=2) as queue:
    handles = [queue.submit(primes_below.spec(10**power)) for power in range(1, 7)]
    total = queue.submit(sum, [handle.out for handle in handles])  # a result is passed on by its handle
    for power, handle in enumerate(handles, 1):
        print(f"{handle.result():8} primes below 10^{power}")
    print(f"{total.result():8} in all")

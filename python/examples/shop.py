"""A shop that never sells what it has not got, however many tills there are: the face for threads.

python shop.py 127.0.0.1:4421
"""

from __future__ import annotations

import sys
import threading
from typing import Optional

import yagura


def sell(found: Optional[yagura.Versioned]) -> yagura.Change[bool]:
    """One of the stock is sold, if there is one."""
    left = int(found.value) if found else 0
    if left == 0:
        return yagura.Keep(False)
    return yagura.Put(str(left - 1), True)


def main(address: str) -> None:
    with yagura.Client(address) as shop:
        shop.put("shop/lanterns", "10")

        def till() -> None:
            for _ in range(5):
                if shop.update("shop/lanterns", sell):
                    shop.increment("shop/sold")

        shop.delete("shop/sold")
        tills = [threading.Thread(target=till) for _ in range(4)]
        for thread in tills:
            thread.start()
        for thread in tills:
            thread.join()
        assert shop.get("shop/sold") == b"10" and shop.get("shop/lanterns") == b"0"
        try:
            shop.put("", "a key has a name")
        except yagura.OutcomeUnknown:
            raise SystemExit("a change that may or may not have happened: read before trying again") from None
        except yagura.Error as error:
            print(f"nothing was changed: {error}")
    print("all is well")


if __name__ == "__main__":
    main(sys.argv[1])

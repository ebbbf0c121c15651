"""The keeper of a lease: an attempt that is under way at the end announces no outage that nothing would end."""

import threading

import pytest

from spark_ckpt.driver.lease_keeper import LeaseKeeper
from spark_ckpt.errors import StoreUnreachable

WAIT_S = 120


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_renewal_that_fails_after_the_end_announces_no_outage(is_closed):
    asked, answer, missed = threading.Event(), threading.Event(), threading.Event()

    def renew():
        asked.set()
        assert answer.wait(WAIT_S)
        raise StoreUnreachable("timeout")

    keeper = LeaseKeeper(renew, 0, lambda: None, lambda error, since_s: missed.set(), lambda error: None)
    keeper.start()
    assert asked.wait(WAIT_S)
    if is_closed:
        keeper.close()
    answer.set()
    assert is_closed or missed.wait(WAIT_S)
    keeper.close()
    keeper.join(WAIT_S)
    assert missed.is_set() != is_closed

"""Private parts of Ray: which head an address stands for."""


def head_address(address: str) -> tuple[str, int]:
    """Host and port of the head that `address` (HOST:PORT, or auto) stands for.

    Raises ConnectionError if `auto` finds no cluster, ValueError if it is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    host, _, port = canonicalize_bootstrap_address_or_die(address.removeprefix("ray://")).rpartition(":")
    return host.strip("[]"), int(port)

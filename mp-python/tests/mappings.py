"""Mappings of this process."""


def mapping_of(address):
    """Returns the addresses, permissions, inode and path of the mapping with an address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, permissions, _, _, inode, *path = line.split()
            low, high = addresses.split("-")
            if int(low, 16) <= address < int(high, 16):
                return addresses, permissions, inode, path[0] if path else ""
    return "", "", "", ""


def in_shared_memory(address):
    """Returns ``True`` if an address belongs to the arena."""
    return mapping_of(address)[3].startswith("/memfd:mp")

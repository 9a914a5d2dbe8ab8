"""Facts of Criteo Terabyte that its publishers counted."""

TRAIN_ROWS = 4_195_197_692
"""Of days 0 to 22, as NVIDIA's scripts count them."""
# Ids that a feature of the 24 days has: of those seen 15 times or more (NVIDIA), and without a limit (MLPerf's DLRM).
CARDINALITIES = {
    "15": (
        7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4, 968,
        15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
    ),
    "none": (
        227605432, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 130229467, 3067956, 405282, 10, 2209, 11938, 155, 4,
        976, 14, 292775614, 40790948, 187188510, 590152, 12973, 108, 36,
    ),
}  # fmt: skip

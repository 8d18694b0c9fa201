import unittest

from vat import free_shipping, with_tax


class VatTest(unittest.TestCase):
    def test_standard_rate_is_added(self) -> None:
        self.assertEqual(with_tax(1000), 1210)

    def test_reduced_rate_rounds_half_up(self) -> None:
        self.assertEqual(with_tax(995, "reduced"), 1095)

    def test_zero_rate_changes_nothing(self) -> None:
        self.assertEqual(with_tax(1234, "zero"), 1234)

    def test_shipping_is_free_from_fifty(self) -> None:
        self.assertTrue(free_shipping(5000))
        self.assertFalse(free_shipping(4999))


if __name__ == "__main__":
    unittest.main()

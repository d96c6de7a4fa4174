"""The conformance kit: one suite of tests per contract, and tiny environments to test with.

Import the suite of the contract at hand from its module, subclass it, supply the methods that it
names, and inherit the tests.
"""

__version__ = "0.1.0"

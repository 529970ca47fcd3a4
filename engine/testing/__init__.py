"""The test kit: processors call by call, whole jobs in virtual time, conformance of connectors."""

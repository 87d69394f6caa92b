"""The version of the package, known where only its files are: on an executor of Spark."""

VERSION = "0.1.0"

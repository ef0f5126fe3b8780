"""The wire contract: messages and services, and the stubs that protoc made of them, which nobody edits by
hand.
"""

"""The wire contract: messages and services, and the stubs that protoc generates from them."""

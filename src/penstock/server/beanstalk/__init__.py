"""The beanstalk protocol on TCP. docs/beanstalk.md says how it maps to queues."""

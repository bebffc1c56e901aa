//! Everything that lives longer than a call: threads, queues, futures.

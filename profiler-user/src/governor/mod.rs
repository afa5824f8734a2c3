//! The governor thread: closes a link within microseconds of the breaker's alarm.

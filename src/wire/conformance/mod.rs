//! What decides whether the codecs are right: recorded data, the schema, the Python SDK itself.

mod golden;
mod plain;
mod schema;

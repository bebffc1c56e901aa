//! What decides whether the codecs are right: recorded data, the schema, the Python SDK itself.

mod golden;
mod live;
mod plain;
mod properties;
mod random;
mod schema;
mod traffic;
mod values;

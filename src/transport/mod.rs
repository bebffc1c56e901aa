//! One request out, one reply in; the only room that names ureq.

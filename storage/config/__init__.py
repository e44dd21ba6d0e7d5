"""Table configurations: classes, YAML files, and properties of CREATE TABLE."""

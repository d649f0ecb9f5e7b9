"""One door for what people bring: labels, features, persons, from files, frames and arrays.

`labels.encode` turns labels into class numbers, `features` chooses and converts the columns of
features, and `persons` names persons. Every format, command and the estimator uses them. They are
record-local, and nothing that a single private record holds raises an error. What is wrong by
shape, type or name is an error, before anything is spent.
"""

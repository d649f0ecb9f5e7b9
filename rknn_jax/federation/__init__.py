"""The protocol between real parties, and Flower as what carries it.

| file       | whose    | what it does |
|------------|----------|---------------------------------------------------------------------------------|
| `rounds`   | both     | what is asked, and what an answer guarantees | | `wire`     | both     |
questions and answers as bytes: numbers and names, never code | | `client`   | client   | keeps to
its own budget, and says the same when it is asked the same again       | | `collector`| server   |
checks what arrives, adds it up and has it on disk before it counts              | | `publish`  |
server   | labels, student, guarantee and report | | `secure_sum`| both    | counts under masks that
cancel in the sum, by Flower's SecAgg+ | | `flower`   | both     | the apps | | `processes`| both |
`rknn serve` and `rknn join`: a process each, that runs no code but its own      | | `simulation`|
neither | virtual clients in Flower's simulation engine |

Nothing but the last four knows Flower, and all else is tested without it.
"""

"""Protocol between real parties, with Flower as its transport.

| file         | side    | purpose                                                                 |
|--------------|---------|-------------------------------------------------------------------------|
| `rounds`     | both    | the question of a round, and the guarantee of an answer                 |
| `wire`       | both    | questions and answers as bytes: numbers and names, never code           |
| `client`     | client  | answers within its budget; repeated questions get the same answer       |
| `collector`  | server  | checks answers, writes them to disk and adds them up                    |
| `publish`    | server  | labels, student, guarantee and report                                   |
| `secure_sum` | both    | counts under masks that cancel in the sum, by Flower's SecAgg+          |
| `flower`     | both    | the Flower apps                                                         |
| `processes`  | both    | `rknn serve` and `rknn join`: a process each, with installed code only  |
| `simulation` | neither | virtual clients in Flower's simulation engine                           |

Only the last four use Flower, and everything else is tested without it.
"""

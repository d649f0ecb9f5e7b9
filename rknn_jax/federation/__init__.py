"""Protocol between real parties, over HTTPS.

| file                 | side   | purpose                                                          |
|----------------------|--------|------------------------------------------------------------------|
| `rounds`             | both   | the question of a round, and the guarantee of an answer          |
| `wire`               | both   | questions and answers as bytes: numbers and names, never code    |
| `secure_sum`         | client | numbers under masks that cancel in the sum                       |
| `secure_sum_server`  | server | the sum alone, opened by those who stay                          |
| `tls`                | both   | certificates, and the number by which a client counts            |
| `certificates`       | both   | certificates for tests of a federation                           |
| `agreement`          | client | what the owner allows a server to ask                            |
| `client`             | client | answers within its budget, and the same when asked again         |
| `connection`         | client | requests to a server, again until it answers                     |
| `participation`      | client | asks for the round, answers it, and waits for its end            |
| `collector`          | server | checks answers, writes them to disk and adds them up             |
| `answer_frames`      | server | the file of the answers, of which a crash cuts the end at most   |
| `listener`, `server` | server | bounded connections, and the HTTP resources of a round           |
| `desk`, `hosting`    | server | what clients bring, counted in batches from beginning to end     |
| `joining`            | client | reads the records, and opens their ledger                        |
| `inputs`             | both   | reads public rows, and the rows of private records               |
| `messages`           | client | exact messages from the operating system's entropy               |
| `check_rounds`       | both   | the second question, by which clients check the labels           |
| `client_roles`       | client | which records vote and which check                               |
| `checking`           | server | the check's labelings, and what clients measured                 |
| `round_validation`   | both   | what a round must be, before anything is paid                    |
| `round_folder`       | server | a round on disk, and the same one after a restart                |
| `settings`           | both   | options of `rknn serve` and `rknn join`                          |
| `request`            | server | what an owner asks for                                           |
| `merge`              | server | folders of several servers of one round, counted together        |
| `round_labels`       | server | labels of the public rows from what clients sent                 |
| `publish`            | server | labels, student, guarantee and report                            |
| `flower`             | both   | the same clients in Flower's engines, for research               |
| `simulation`         | none   | virtual clients of Flower's simulation engine                    |

`docs/wire.md` describes the bytes and the HTTP resources for other languages. Only the last two
files use Flower.
"""

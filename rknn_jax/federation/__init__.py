"""Protocol between real parties, over HTTPS.

In the order of a record's way, from its file to a label:

| file                                    | side   | purpose                                       |
|-----------------------------------------|--------|-----------------------------------------------|
| `settings`, `request`                   | server | what its owner asks for                       |
| `inputs`                                | both   | reads public rows, and private records        |
| `rounds`, `round_validation`            | both   | the question of a round, and what it must be  |
| `check_rounds`                          | both   | the second question: do records agree?        |
| `round_folder`, `round_sequence`        | server | rounds on disk, one after another             |
| `join_settings`, `joining`              | client | its owner's settings, records and ledger      |
| `tls`, `certificates`                   | both   | who connects, and the number that counts      |
| `certificate_errors`                    | both   | their errors, with a remedy                   |
| `connection`, `participation`           | client | requests, until the round is over             |
| `agreement`, `question_notice`          | client | what the owner allows, and is told            |
| `client`, `client_roles`                | client | answers; which records vote and which check   |
| `client_payments`, `notes`              | client | charges the ledger; the same when asked again |
| `messages`                              | client | exact randomized messages                     |
| `secure_sum`, `secure_sum_keys`         | client | numbers under masks that cancel in the sum    |
| `secure_sum_layout`                     | both   | bytes of such a sum                           |
| `secure_sum_server`                     | server | the sum alone, opened by those who stay       |
| `wire`                                  | both   | questions and answers as bytes, never code    |
| `gate`, `listener`, `server`, `monitor` | server | bounded connections, resources, health        |
| `desk`, `hosting`                       | server | what clients bring, from beginning to end     |
| `collector`, `answer_frames`            | server | answers, checked, written and added up        |
| `client_accounts`                       | server | what each client has answered over rounds     |
| `merge`, `shared_rounds`                | server | several servers of one round                  |
| `round_labels`, `checking`              | server | labels of public rows, and their measure      |
| `publish`                               | server | labels, student, guarantee and report         |
| `flower`, `simulation`                  | both   | the same clients in Flower's engines          |

`docs/wire.md` describes the bytes and the HTTP resources for other languages. Only the files of the
last row use Flower. The folder `app` is an app for Flower's hub.
"""

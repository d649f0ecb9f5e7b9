"""Compare all methods on the same splits over a grid of epsilon, on one page.

A stopped comparison resumes: finished runs are not repeated.

    python -m train.compare --dataset digits
    python -m train.compare --dataset mnist --data-dir DIR
    python -m train.compare --dataset mnist --data-dir DIR --unit person

One delta, one relation and one unit hold for all methods, and every cell is a run of
`train.distill`. Labels alone come first, then students, then methods that train networks. The page
is written after each group. So after an early stop it shows all measured cells, and lists the
missing ones.

    OUT/<method>/epsilon=E-seed=S/   a run folder for every cell
    OUT/compare.html                 the page; it loads nothing
    OUT/compare.md, compare.json     the same content
"""

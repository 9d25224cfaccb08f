"""The filters min-p, top-k and top-p: they find where each row's distribution is cut.

The three keep a prefix of one total order of the tokens, higher logit first and lower id among
equals, so together they make one cut a row (`sampling.race.Cut`): a logit, and the last id kept
among the tokens equal to it. `plain` finds the cuts in torch, for the CPU. The other modules are
Triton kernels that find the same cuts without sorting the vocabulary. They work in stages, from
what `kernels.tile_pass` left of each tile; a stage decides the rows it can, and the next one
takes the others:

        rows with filters
            |
            v
        shortlist ------ decides a row whose cut lies among few candidates, from the blocks with
            |            the highest maxima; `candidates` gathers and sorts them
            | flat distributions, large k, crowds of ties
            v
     +-> bracket         a sample of the row says between which two values its cut lies
     |      v
     |    scan           one pass measures what lies above the bracket, and notes the values inside
     |      v
     |     cut --------- decides a row whose cut lies among the noted values; the measures prove it
     |      | the sample misled, or more values lie inside than there is room for
     +------+            the next turn knows what the measures have proved
            | all turns are over: `cut.TURNS`, one more for a top-p after a large top-k
            v
       bisection ------ decides any row, slowly

A *turn* is one bracket, scan and cut. `cut_state` has the states a row goes through and the bounds
of its cut that are passed from turn to turn; `masses` has what a cut keeps of each tile, which the
race of `kernels.race` needs. Read `plain`, then `cut_state`, then the stages in their order. Where
ranks divide the vocabulary, `sampling.sharded` says what each stage exchanges.
"""

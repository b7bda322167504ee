// Which updates of a round stand out from the others: by length, or by direction. Pure. For logs and whoever watches (INTER_FAULT_OUTLIER): what
// is flagged has been committed all the same; the profile `robust` is what bounds it.
//
// By length: a norm above four times the median. By direction: the cosine between it and the sum of all others, each taken as long as any
// other, is below −0.2, while those others agree with each other by more than 0.2. Clusters that each read another language agree by 0.3 to 0.5
// at first, and later, when what is left to learn is each one's own, by 0.1 to −0.19 (three clusters, the quickstart's model, 300 steps): of
// updates that have nothing in common nobody can say which one is turned around. Sketches (compress/sketch.h) are off by 0.03.
#ifndef INTER_OUTLIER_H
#define INTER_OUTLIER_H
#include "inter/types.h"

// A bit per member whose accepted update stands out. norms, sketches: by member; of nobody's two updates can be said which one is odd, so with
// fewer than three nothing is. A norm of 0 or a sketch that is NULL is not known: then by this nothing is.
uint16_t inter_outliers(const struct inter_record *r, const float norms[INTER_MEMBERS_MAX],
                        const float *const sketches[INTER_MEMBERS_MAX]);

#endif

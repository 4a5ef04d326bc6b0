/* Runs the model on .npy files, one for each input, and writes a .npy file for each output.
 *
 *   @NAME@ [-o PREFIX] [-n RUNS] INPUT.npy ...
 *
 * Outputs are PREFIX0.npy, PREFIX1.npy, ... ("output" by default). With -n the model runs that often, and the shortest
 * and the middle time of a run are printed. It ends with @REFUSED@ where the model refuses values.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "@NAME@.h"

#define FAIL(...) return fprintf(stderr, "@NAME@: " __VA_ARGS__), 1
#define MOST_RUNS 10000
#define TEXT 1024

static double times[MOST_RUNS];

/* The header of a .npy file for a tensor of the model, as NumPy writes it; its length without the first 10 bytes. */
static int header(const @NAME@_tensor *tensor, char *text) {
  int length = snprintf(text, TEXT, "{'descr': '%s', 'fortran_order': False, 'shape': (", tensor->type);
  for (int axis = 0; axis < tensor->rank; ++axis)
    length += snprintf(text + length, TEXT - length, tensor->rank == 1 ? "%lld," : axis ? ", %lld" : "%lld", tensor->shape[axis]);
  length += snprintf(text + length, TEXT - length, "), }");
  while ((length + 11) % 64) text[length++] = ' ';
  text[length++] = '\n';
  text[length] = 0;
  return length;
}

/* Compares two headers without their spaces, so that files of other programs are read as well. */
static int same(const char *one, const char *other) {
  for (;; ++one, ++other) {
    while (*one == ' ' || *one == '\n') ++one;
    while (*other == ' ' || *other == '\n') ++other;
    if (*one != *other) return 0;
    if (!*one) return 1;
  }
}

/* Takes the spaces and the end of the line off a header, for messages. */
static const char *trimmed(char *text) {
  size_t length = strlen(text);
  while (length && (text[length - 1] == ' ' || text[length - 1] == '\n')) text[--length] = 0;
  return text;
}

static int read_input(const char *path, const @NAME@_tensor *tensor, void *data) {
  static char found[65536], expected[TEXT];
  unsigned char start[12];
  FILE *file = fopen(path, "rb");
  if (!file) FAIL("cannot open %s, the file of input %s\n", path, tensor->name);
  if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6)) FAIL("%s is no .npy file\n", path);
  size_t length = start[8] | start[9] << 8;
  if (start[6] > 1) {
    if (fread(start + 10, 1, 2, file) != 2 || start[10] || start[11]) FAIL("the header of %s is too long\n", path);
  }
  if (fread(found, 1, length, file) != length) FAIL("%s ends too early\n", path);
  found[length < sizeof found ? length : sizeof found - 1] = 0;
  header(tensor, expected);
  if (!same(found, expected)) FAIL("%s holds %s where input %s is %s\n", path, trimmed(found), tensor->name, trimmed(expected));
  if (fread(data, 1, tensor->bytes, file) != tensor->bytes) FAIL("%s ends too early\n", path);
  if (fgetc(file) != EOF) FAIL("%s is longer than its header says\n", path);
  fclose(file);
  return 0;
}

static int write_output(const char *path, const @NAME@_tensor *tensor, const void *data) {
  static char text[TEXT];
  int length = header(tensor, text);
  const unsigned char start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, length & 255, length >> 8};
  FILE *file = fopen(path, "wb");
  if (!file) FAIL("cannot write %s\n", path);
  if (fwrite(start, 1, 10, file) != 10 || fwrite(text, 1, length, file) != (size_t)length ||
      fwrite(data, 1, tensor->bytes, file) != tensor->bytes || fclose(file))
    FAIL("cannot write %s\n", path);
  return 0;
}

static void sort(double *values, int count) {
  for (int end = 1; end < count; ++end)
    for (int at = end; at > 0 && values[at - 1] > values[at]; --at) {
      const double larger = values[at - 1];
      values[at - 1] = values[at];
      values[at] = larger;
    }
}

@BUFFERS@

int main(int count, char **arguments) {
  const char *prefix = "output";
  int runs = 1, given = 0, timed = 0;
  for (int number = 1; number < count; ++number) {
    if (!strcmp(arguments[number], "-o") && number + 1 < count) {
      prefix = arguments[++number];
    } else if (!strcmp(arguments[number], "-n") && number + 1 < count) {
      runs = atoi(arguments[++number]);
      timed = 1;
      if (runs < 1 || runs > MOST_RUNS) FAIL("-n takes a number of 1 to %d\n", MOST_RUNS);
    } else if (given < @INPUTS@) {
      if (read_input(arguments[number], &@NAME@_inputs[given], inputs[given])) return 1;
      ++given;
    } else {
      FAIL("%s is one file too many: the model has %d inputs\n", arguments[number], @INPUTS@);
    }
  }
  if (given < @INPUTS@) FAIL("the model has %d inputs, and %d files were given\n", @INPUTS@, given);
@LOAD@
  for (int run = 0; run < runs; ++run) {
    struct timespec start, end;
    timespec_get(&start, TIME_UTC);
    const char *refused = @NAME@_run((const void *const *)inputs, outputs);
    if (refused) return fprintf(stderr, "%s\n", refused), @REFUSED@;
    timespec_get(&end, TIME_UTC);
    times[run] = (end.tv_sec - start.tv_sec) * 1e3 + (end.tv_nsec - start.tv_nsec) * 1e-6;
  }
  if (timed) {
    sort(times, runs);
    printf("%.6f %.6f\n", times[0], times[runs / 2]);
  }
  for (int number = 0; number < @OUTPUTS@; ++number) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s%d.npy", prefix, number) >= (int)sizeof path) FAIL("-o %s is too long\n", prefix);
    if (write_output(path, &@NAME@_outputs[number], outputs[number])) return 1;
  }
  return 0;
}

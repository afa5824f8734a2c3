// Runs in a copy of a report's page, after its own script. Clicks, types, and writes what it saw into the page.
{
  const saw = {};
  const rows = table => [...document.querySelectorAll('#' + table + ' tbody tr')].filter(row => getComputedStyle(row).display !== 'none');
  const names = () => rows('functions').map(row => row.cells[0].firstChild.textContent);
  const heading = (table, name) => [...document.querySelectorAll('#' + table + ' th button')].find(b => b.firstChild.textContent === name);
  const column = (table, name) => {
    const index = heading(table, name).parentNode.cellIndex;
    return rows(table).map(row => row.cells[index].dataset.v).map(v => v === undefined || v === '' ? null : Number(v));
  };
  const type = text => {
    const box = document.querySelector('#find input');
    box.value = text;
    box.dispatchEvent(new Event('input'));
  };

  saw.names = names();
  const calls = heading('functions', 'CALLS'), sorts = [];
  const click = () => { calls.click(); sorts.push(calls.parentNode.getAttribute('aria-sort')); };
  click();
  saw.calls_down = column('functions', 'CALLS');
  click();
  saw.calls_up = column('functions', 'CALLS');
  click();
  saw.names_after = names();
  saw.sorts = sorts;
  heading('functions', 'FUNCTION').click();
  saw.by_name = names();
  heading('functions', 'FUNCTION').click();
  heading('functions', 'FUNCTION').click();
  heading('times', 'P90').click();
  saw.p90_down = column('times', 'P90');
  heading('times', 'P90').click();
  saw.p90_up = column('times', 'P90');
  heading('functions', 'HOW').click();
  saw.how_down = column('functions', 'HOW');
  heading('functions', 'HOW').click();
  heading('functions', 'HOW').click();

  type('SERVER lrangeC');
  saw.found = names();
  const boxes = [...document.querySelectorAll('#frames span')];
  const of = (box, name) => Number(box.style.getPropertyValue(name));
  type('lrangeC');
  saw.said = document.querySelector('#find output').textContent;
  saw.marked = boxes.filter(box => box.classList.contains('hit')).reduce((sum, box) => sum + of(box, '--w'), 0);
  type('libc.so');
  saw.in_libc = names();
  type('[kernel]');
  saw.said_of_kernel = document.querySelector('#find output').textContent;
  saw.marked_by_figures = ['%', 'of', 'samples', 'all'].map(word => {
    type(word);
    // Boxes that do not have the word in their names.
    return boxes.filter(box => box.classList.contains('hit') && (box === boxes[0] || !box.title.split('\n', 2).join(' ').toLowerCase().includes(word))).length;
  });
  type('');
  saw.cleared = names();

  const frame = boxes.find(box => box.textContent === 'lrangeCommand');
  const width = () => frame.getBoundingClientRect().width / document.getElementById('frames').getBoundingClientRect().width;
  saw.widths = [width()];
  frame.click();
  saw.widths.push(width());
  saw.root_stays = boxes[0].getBoundingClientRect().width > 0;
  saw.neighbours_gone = boxes.filter(box => of(box, '--x') >= of(frame, '--x') + of(frame, '--w') || of(box, '--x') + of(box, '--w') <= of(frame, '--x'))
    .every(box => getComputedStyle(box).display === 'none');
  frame.click();
  saw.widths.push(width());

  saw.hacked = window.hacked ?? null;
  saw.scripts = document.scripts.length;
  saw.images = document.images.length;
  saw.fetched = performance.getEntriesByType('resource').length;
  const hostile = [...document.querySelectorAll('#functions td:first-child')].find(cell => cell.title.includes('hacked'));
  hostile.click();
  saw.hostile_title = hostile.title;
  saw.hacked = window.hacked ?? null;

  // WCAG 2.1: (L1 + 0.05) / (L2 + 0.05) of relative luminances.
  const parse = colour => colour.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const contrast = element => {
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  saw.contrasts = {};
  const kinds = ['h1', '.run', 'nav a', 'th button', 'td', 'td small', 'td.exact', 'b.exact', '#find input', 'dt', 'dd', '#frames span', '#frames .k'];
  for (const kind of kinds) {
    const element = document.querySelector(kind);
    if (element) saw.contrasts[kind] = contrast(element);
  }
  // Every shade of a box, and each of them as a hit.
  const painted = boxes[1], before = painted.className;
  for (const shade of ['a', 'b', 'c', 'd', 'i', 'k']) {
    painted.className = shade;
    saw.contrasts['.' + shade] = contrast(painted);
    painted.className = shade + ' hit';
    saw.contrasts['hit on .' + shade] = contrast(painted);
  }
  painted.className = before;
  saw.dark = matchMedia('(prefers-color-scheme: dark)').matches;
  saw.background = getComputedStyle(document.body).backgroundColor;

  const out = document.createElement('pre');
  out.id = 'acts';
  out.textContent = JSON.stringify(saw);
  document.body.append(out);
}
